"""What a finished run contains, and how runs are scored and compared."""
