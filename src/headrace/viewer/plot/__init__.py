"""Pictures of what runs have recorded: from records to curves, to a chart, to a drawing, to SVG, a page or PNG."""
