"""Shows what was decided and what it costs: tables as text, HTML and JSON, and plots."""
