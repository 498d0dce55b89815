"""The measured loop judged on a table of runs that were all really made on one machine."""
