"""Labels and ids of rows: tables of classes, and the ids that users give to rows."""
