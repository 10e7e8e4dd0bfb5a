"""The HTTP door, imported as `topicsd.api`: one file a noun, no policy of its own."""
