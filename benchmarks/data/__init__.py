"""Reading: databases and batches beside other frameworks' readers."""
