package cgroup_test

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/sandbox/provider/gvisor/cgroup"
)

// fake creates a directory with files like those of control groups.
func fake(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	put(t, root, files)
	return root
}

func put(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// got returns the content of files.
func got(t *testing.T, root string, want map[string]string) map[string]string {
	t.Helper()
	have := map[string]string{}
	for name := range want {
		raw, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		have[name] = string(raw)
	}
	return have
}

var v2Files = map[string]string{
	"cgroup.controllers":          "cpuset cpu io memory hugetlb pids\n",
	"cgroup.subtree_control":      "memory\n",
	"engi/cgroup.subtree_control": "",
	"engi/one/cgroup.procs":       "",
	"engi/one/cpu.max":            "max 100000\n",
	"engi/one/cpu.stat":           "usage_usec 1500000\nuser_usec 1\n",
	"engi/one/memory.max":         "max\n",
	"engi/one/memory.swap.max":    "max\n",
	"engi/one/memory.oom.group":   "0\n",
	"engi/one/memory.current":     "50000000\n",
	"engi/one/memory.peak":        "60000000\n",
	"engi/one/memory.stat":        "anon 1\ninactive_file 10000000\n",
	"engi/one/memory.events":      "low 0\noom 3\noom_kill 2\n",
	"engi/one/pids.max":           "max\n",
	"engi/one/cpu.weight":         "100\n",
}

func v1Files() map[string]string {
	files := map[string]string{}
	for _, c := range []string{"memory", "cpu", "pids", "cpuacct"} {
		files[c+"/tasks"] = ""
		files[c+"/engi/one/tasks"] = ""
		files[c+"/engi/one/cgroup.procs"] = ""
	}
	maps.Copy(files, map[string]string{
		"unified/cgroup.controllers":                  "hugetlb\n",
		"memory/engi/one/memory.limit_in_bytes":       "9223372036854771712\n",
		"memory/engi/one/memory.memsw.limit_in_bytes": "9223372036854771712\n",
		"memory/engi/one/memory.usage_in_bytes":       "50000000\n",
		"memory/engi/one/memory.max_usage_in_bytes":   "60000000\n",
		"memory/engi/one/memory.stat":                 "inactive_file 1\ntotal_inactive_file 10000000\n",
		"memory/engi/one/memory.oom_control":          "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
		"cpu/engi/one/cpu.cfs_period_us":              "100000\n",
		"cpu/engi/one/cpu.cfs_quota_us":               "-1\n",
		"cpu/engi/one/cpu.shares":                     "1024\n",
		"cpuacct/engi/one/cpuacct.usage":              "1500000000\n",
		"pids/engi/one/pids.max":                      "max\n",
	})
	return files
}

func TestDetect(t *testing.T) {
	for name, tc := range map[string]struct {
		files   map[string]string
		want    cgroup.Version
		missing []string
	}{
		"v2":                  {v2Files, cgroup.V2, nil},
		"v2 without pids":     {map[string]string{"cgroup.controllers": "cpu memory\n"}, cgroup.V2, []string{"pids"}},
		"v2 without anything": {map[string]string{"cgroup.controllers": "\n"}, cgroup.None, []string{"memory", "cpu", "pids"}},
		"v1 beside empty v2":  {v1Files(), cgroup.V1, nil},
		"v1 without memory":   {map[string]string{"cpu/tasks": "", "pids/tasks": ""}, cgroup.V1, []string{"memory"}},
		"nothing":             {nil, cgroup.None, []string{"memory", "cpu", "pids"}},
	} {
		v, missing := cgroup.Detect(fake(t, tc.files))
		if v != tc.want || !cmp.Equal(missing, tc.missing) {
			t.Errorf("%s: got %v without %v, want %v without %v", name, v, missing, tc.want, tc.missing)
		}
	}
}

func TestLimitV2(t *testing.T) {
	root := fake(t, v2Files)
	g := cgroup.Open(root, "engi", cgroup.V2).Group("one")
	if err := g.Create(); err != nil {
		t.Fatal(err)
	}
	if err := g.Limit(cgroup.Limits{VCPUs: 0.5, Memory: 100 << 20, Tasks: 77, Weight: 2}); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"cgroup.subtree_control":      "+pids", // the kernel accepts one word at a time; the last one stays in a fake file
		"engi/cgroup.subtree_control": "+pids",
		"engi/one/cpu.max":            "50000 100000",
		"engi/one/cpu.weight":         "2",
		"engi/one/memory.max":         strconv.Itoa(100 << 20),
		"engi/one/memory.swap.max":    "0",
		"engi/one/memory.oom.group":   "1",
		"engi/one/pids.max":           "77",
	}
	if diff := cmp.Diff(want, got(t, root, want)); diff != "" {
		t.Error(diff)
	}
	if err := g.Limit(cgroup.Limits{VCPUs: -1}); err != nil {
		t.Fatal(err)
	}
	want = map[string]string{"engi/one/cpu.max": "max 100000", "engi/one/pids.max": "77"}
	if diff := cmp.Diff(want, got(t, root, want)); diff != "" {
		t.Error(diff)
	}
	// 40 MB are in use that cannot be reclaimed.
	if err := g.Limit(cgroup.Limits{Memory: 30000000}); !errors.Is(err, cgroup.ErrInUse) {
		t.Errorf("limit below what is used: %v, want ErrInUse", err)
	}
}

func TestLimitV1(t *testing.T) {
	root := fake(t, v1Files())
	g := cgroup.Open(root, "engi", cgroup.V1).Group("one")
	if err := g.Create(); err != nil {
		t.Fatal(err)
	}
	if err := g.Limit(cgroup.Limits{VCPUs: 1.5, Memory: 100 << 20, Tasks: 77}); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"cpu/engi/one/cpu.cfs_quota_us":               "150000",
		"cpu/engi/one/cpu.cfs_period_us":              "100000",
		"memory/engi/one/memory.limit_in_bytes":       strconv.Itoa(100 << 20),
		"memory/engi/one/memory.memsw.limit_in_bytes": strconv.Itoa(100 << 20),
		"pids/engi/one/pids.max":                      "77",
	}
	if diff := cmp.Diff(want, got(t, root, want)); diff != "" {
		t.Error(diff)
	}
}

// TestIdle: a weight of 1 makes a group idle on kernels that support it, and light on others; any
// other weight first ends the idle state, because an idle group has no weight.
func TestIdle(t *testing.T) {
	for _, tc := range []struct {
		version      cgroup.Version
		files        map[string]string
		dir, weights string
		light, half  string
	}{
		{cgroup.V1, v1Files(), "cpu/engi/one/", "cpu.shares", "10", "512"},
		{cgroup.V2, maps.Clone(v2Files), "engi/one/", "cpu.weight", "1", "50"},
	} {
		for _, able := range []bool{false, true} {
			weights, idle := tc.dir+tc.weights, tc.dir+"cpu.idle"
			if able {
				tc.files[idle] = "0\n"
			}
			root := fake(t, tc.files)
			g := cgroup.Open(root, "engi", tc.version).Group("one")
			for _, percent := range []int{50, 1, 50} {
				if err := g.Limit(cgroup.Limits{Weight: percent}); err != nil {
					t.Fatal(err)
				}
				want := map[string]string{weights: tc.half}
				switch {
				case able:
					want[idle] = map[int]string{1: "1", 50: "0"}[percent]
				case percent == 1:
					want[weights] = tc.light
				}
				if diff := cmp.Diff(want, got(t, root, want)); diff != "" {
					t.Errorf("%v, able %v, %d percent: %s", tc.version, able, percent, diff)
				}
			}
		}
	}
}

func TestCounters(t *testing.T) {
	want := cgroup.Usage{CPU: 1500 * time.Millisecond, Memory: 40000000, Peak: 60000000}
	for v, files := range map[cgroup.Version]map[string]string{cgroup.V1: v1Files(), cgroup.V2: v2Files} {
		g := cgroup.Open(fake(t, files), "engi", v).Group("one")
		u, err := g.Usage()
		if err != nil || u != want {
			t.Errorf("%v: usage %+v, %v, want %+v", v, u, err, want)
		}
		if n := g.MemoryKills(); n != 2 {
			t.Errorf("%v: %d kills for memory, want 2", v, n)
		}
		if _, err := cgroup.Open(fake(t, files), "engi", v).Group("none").Usage(); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%v: usage of a missing group: %v", v, err)
		}
	}
}

func TestListAndRemove(t *testing.T) {
	root := fake(t, map[string]string{"cgroup.controllers": "cpu memory pids", "cgroup.subtree_control": "cpu memory pids", "engi/cgroup.subtree_control": "cpu memory pids"})
	tree := cgroup.Open(root, "engi", cgroup.V2)
	for _, name := range []string{"a", "b", "a"} {
		if err := tree.Group(name).Create(); err != nil {
			t.Fatal(err)
		}
	}
	names, err := tree.List()
	if err != nil || !cmp.Equal(names, []string{"a", "b"}) {
		t.Errorf("got %v, %v", names, err)
	}
	for range 2 {
		if err := tree.Group("a").Remove(time.Now()); err != nil {
			t.Error(err)
		}
	}
	if tree.Group("a").Exists() || !tree.Group("b").Exists() {
		t.Error("the wrong group was removed")
	}
	if names, err := cgroup.Open(t.TempDir(), "engi", cgroup.V2).List(); err != nil || len(names) > 0 {
		t.Errorf("groups of no tree: %v, %v", names, err)
	}
}

// lacks skips a test whose requirements are missing, or fails it if
// ENGI_TEST_REQUIRE is set.
func lacks(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("ENGI_TEST_REQUIRE") != "" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// TestKernel uses the control groups of this host.
func TestKernel(t *testing.T) {
	version, missing := cgroup.Detect(cgroup.DefaultRoot)
	if os.Geteuid() != 0 || version == cgroup.None || len(missing) > 0 {
		lacks(t, "control groups need root and a host that has them")
	}
	t.Run(version.String(), func(t *testing.T) { testKernel(t, cgroup.DefaultRoot, version, true) })
	// Hosts with version 1 often have version 2 without controllers, which is
	// enough for all tests except those of limits.
	if unified := filepath.Join(cgroup.DefaultRoot, "unified"); version == cgroup.V1 {
		if _, err := os.Stat(filepath.Join(unified, "cgroup.controllers")); err == nil {
			t.Run("idle v2", func(t *testing.T) { testKernel(t, unified, cgroup.V2, false) })
		}
	}
}

func testKernel(t *testing.T, root string, version cgroup.Version, limits bool) {
	tree := cgroup.Open(root, "engi-test-"+strconv.Itoa(os.Getpid()), version)
	g := tree.Group("one")
	t.Cleanup(func() {
		if err := g.Remove(time.Now().Add(10 * time.Second)); err != nil {
			t.Error(err)
		}
		if names, _ := tree.List(); len(names) > 0 {
			t.Errorf("left: %v", names)
		}
	})
	if err := g.Create(); err != nil {
		lacks(t, "control groups cannot be made here: "+err.Error())
	}
	if limits {
		if err := g.Limit(cgroup.Limits{VCPUs: 0.5, Memory: 64 << 20, Tasks: 50}); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("/bin/sh", "-c", "while :; do :; done")
	if err := g.Start(cmd); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	pids, err := g.Processes()
	if err != nil || !cmp.Equal(pids, []int{cmd.Process.Pid}) {
		t.Errorf("processes %v, %v, want %d", pids, err, cmd.Process.Pid)
	}
	if raw, err := os.ReadFile("/proc/thread-self/cgroup"); err != nil || strings.Contains(string(raw), "engi-test") {
		t.Errorf("a thread of ours has stayed in the group: %s, %v", raw, err)
	}
	if err := g.Remove(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	<-ended
	if g.Exists() {
		t.Error("the group is still there")
	}
}
