package main

// archive is about the archive in which a sandbox's disk is saved.
var archive = []change{
	// Times would be rounded to seconds.
	{
		file: "pkg/sentry/fsimpl/tmpfs/tar.go",
		old: `	header := &tar.Header{
`,
		new: `	header := &tar.Header{
		Format:  tar.FormatPAX,
`,
	},
	// Extended attributes whose values are no text would be left out.
	{
		file: "pkg/sentry/fsimpl/tmpfs/tar.go",
		old:  `if !utf8.ValidString(k) || !utf8.ValidString(v) {`,
		new:  `if !utf8.ValidString(k) {`,
	},
}
