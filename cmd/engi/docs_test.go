package main

import (
	"fmt"
	"strings"

	"github.com/engi-dev/engi/node/config"
)

// machine are keys whose defaults depend on the machine and the user.
var machine = map[string]string{
	"data_dir":        "`/var/lib/engi`, or `~/.local/share/engi` for users",
	"cache_dir":       "`/var/cache/engi`, or `~/.cache/engi` for users",
	"admission.boots": "one per processor",
}

func configPage() string {
	var b strings.Builder
	b.WriteString(`# Configuration

This page is made from the program: ` + "`go test ./cmd/engi -run TestDocs -update`" + `.

engi needs no configuration. What is chosen is looked up in this order, and each wins over those before: defaults; the file
` + "`config.toml`" + ` in the data directory, else ` + "`/etc/engi/config.toml`" + `, or the one named by ` + "`--config`" + `; environment variables; flags.
` + "`engi config show`" + ` prints what is in force, where each value is from, as a valid file. Unknown keys are errors, with the nearest
known one. Every key can be set on a command line with ` + "`--set KEY=VALUE`" + `.

Sizes are numbers of bytes or strings like ` + "`\"512MiB\"`" + `, durations strings like ` + "`\"30s\"`" + ` or ` + "`\"7d\"`" + `. A limit of 0 means its default.

| Key | Environment | Default | Meaning |
|---|---|---|---|
`)
	c := config.Defaults()
	for _, k := range config.Keys(&c) {
		def := machine[k.Name]
		if def == "" {
			def = "`" + literal(k.Value) + "`"
			if _, ok := k.Value.Interface().([]config.Pool); ok {
				def = "see below"
			}
		}
		help, _, _ := strings.Cut(k.Help, "; in the environment:")
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s |\n", k.Name, config.Variable(k.Name), def, help)
	}
	b.WriteString(`
## Pools

By default two Python interpreters wait (more on machines with more processors), and one each for JavaScript, TypeScript, Go
and bash. A file's pools replace all of these:

` + "```toml" + `
[[pools]]
template = ""              # empty is the default template
language = "python"        # empty is a bare sandbox
target = 4                 # members that wait
max = 16                   # sandboxes at most, used ones included; 0 is no limit of its own
on_empty = "wait"          # wait, boot_sync or reject; empty is admission.on_empty
claim_timeout = "10s"      # for wait; 0 is admission.claim_timeout
` + "```" + `

In the environment and in flags: ` + "`ENGI_POOLS=python=4:16,base/bash=2`" + `, or ` + "`none`" + `.

## Other variables

| Variable | Meaning |
|---|---|
| ` + "`ENGI_URL`, `ENGI_KEY`" + ` | the server that commands use |
| ` + "`ENGI_CONFIG`" + ` | the configuration file |
`)
	return b.String()
}
