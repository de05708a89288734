package spelling

import "testing"

func TestNearest(t *testing.T) {
	fields := []string{"language", "code", "files", "timeout", "memory", "log_level", "ENGI_LISTEN"}
	for word, want := range map[string]string{
		"langauge": "language", "Language": "language", "lang": "language", "cod": "code", "cdoe": "code", "file": "files",
		"time_out": "timeout", "timout": "timeout", "x": "", "memroy": "memory", "completely": "",
		"loglevel": "log_level", "ENGI_LSITEN": "ENGI_LISTEN", "": "",
	} {
		if got := Nearest(word, fields); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", word, got, want)
		}
	}
}
