"""Data of the applications: texts and tokenizers in `text`, corpora in `corpora`."""
