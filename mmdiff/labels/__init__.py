"""Labels and ids of rows: the table of classes, and the names that users give to rows."""
