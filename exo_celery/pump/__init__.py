"""What brings a batch on: validate its file, keep a window of its lines in work, gather results, write its files.

Each step is taken from the records and may be repeated: a pump that runs twice, late or never loses nothing and
doubles nothing.
"""
