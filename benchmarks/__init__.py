"""Measurements: real files, real fsyncs, fresh processes.  ``make bench`` runs them and prints the table."""
