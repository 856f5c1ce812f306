"""Workers of a Dask cluster that carry out the time slices of a campaign."""
