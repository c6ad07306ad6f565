"""`osucaffe upscale`: images that a net enlarges."""
