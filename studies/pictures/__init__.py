"""Pictures of a study: one file a picture, from plain data to a Plotly figure as plain data."""
