package disk

import (
	"embed"
	"path"
	"strings"
	"sync"
)

//go:embed builtin/*.yaml
var builtinFiles embed.FS

// builtins returns the embedded definitions by name. Callers must not modify the
// map.
var builtins = sync.OnceValue(func() map[string][]byte {
	entries, err := builtinFiles.ReadDir("builtin")
	if err != nil {
		panic(err) // unreachable: the file is embedded
	}
	all := map[string][]byte{}
	for _, e := range entries {
		text, err := builtinFiles.ReadFile(path.Join("builtin", e.Name()))
		if err != nil {
			panic(err) // unreachable: the file is embedded
		}
		all[strings.TrimSuffix(e.Name(), ".yaml")] = text
	}
	return all
})
