"""Random cases against independent references: what single tests of each feature do not combine."""
