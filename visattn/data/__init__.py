"""Images from files into batches."""
