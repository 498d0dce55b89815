"""Pipeline parallelism: stages, schedules, and their exact simulation."""
