"""The report of a study: one HTML file that answers first and then says why."""
