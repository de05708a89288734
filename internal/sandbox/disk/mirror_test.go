package disk

import "testing"

func TestOperatorsMirror(t *testing.T) {
	d := &Templates{o: Options{Mirror: "https://deb.example.com/debian/"}}
	dist := distribution{components: "main"}
	if got, want := d.aptSources(dist, "debian", "bookworm", ""), "deb https://deb.example.com/debian bookworm main"; got != want {
		t.Errorf("sources %q, want %q", got, want)
	}
	if got, want := d.aptSources(dist, "debian", "bookworm", "https://own.example.com"), "deb https://own.example.com bookworm main"; got != want {
		t.Errorf("sources of a definition with a mirror %q, want %q", got, want)
	}
	if got := d.aptSources(distribution{components: "main", mirror: "http://u"}, "ubuntu", "nosuch", ""); got == "deb https://deb.example.com/debian nosuch main" {
		t.Errorf("Ubuntu comes from Debian's archive: %q", got)
	}
}
