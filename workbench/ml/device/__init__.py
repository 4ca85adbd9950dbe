"""Parts of estimators whose rows are on a device, for example a GPU; written with the array API, so for any library."""
