"""The command line: `topicsd`."""
