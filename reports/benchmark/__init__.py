"""The benchmark: the study behind its attack, and the site of its boards."""
