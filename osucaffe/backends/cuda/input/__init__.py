"""What a GPU does with a net's input: uploads, files mapped into its memory, photos, JPEGs."""
