"""OpenAI's words: requests, answers and refusals as its clients know them. Shapes only: no Flask, no IO, no clock."""
