"""Models on disk: what is there, what is whole, how it gets there. The only importer of huggingface_hub."""
