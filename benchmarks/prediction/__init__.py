"""What `osucaffe predict` says, beside real runs."""
