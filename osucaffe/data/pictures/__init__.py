"""What happens to an image between its file and a batch: decoding, resizing, augmentation."""
