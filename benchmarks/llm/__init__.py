"""What a really running small model does to a study."""
