"""A durable, event-sourced session store for CLI agents."""
