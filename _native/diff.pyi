# Python calls it through topicsd._native.reader.
