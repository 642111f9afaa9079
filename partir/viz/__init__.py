"""Tables and pictures of what was decided: plain records in, text and HTML out."""
