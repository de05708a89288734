package rest

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/engi-dev/engi/internal/engi"
)

const wireGolden = "testdata/wire.json"

// full has one of each noun with every field set.
func full() map[string]any {
	at := func(s int) time.Time {
		return time.Date(2026, 11, 20, 20, 0, s, 0, time.FixedZone("elsewhere", 3600))
	}
	size := engi.Size{VCPUs: 1.5, Memory: 512 << 20, Disk: 1 << 30, Inodes: 1000, Processes: 64, OpenFiles: 1024}
	refusal := engi.Errorf(engi.Exhausted, "the queue is full").WithRemedy("wait").WithRetry(engi.Retry{AfterMillis: 1500, Position: 3})
	x := engi.Execution{
		ID: "exe_1", Owner: "ann", State: engi.ExecutionDone, Language: engi.Python, Template: "base", Sandbox: "sbx_1",
		Created: at(0), Started: at(1), Ended: at(2), Refusal: refusal,
		Result: &engi.Result{
			Exit:   engi.Exit{Code: -1, Signal: "KILL", Cause: engi.CauseMemory},
			Stdout: []byte("ü\xff\n"), Stderr: []byte("\xe2\x82"), StdoutTruncated: true, StderrTruncated: true,
			Artifacts:     []engi.Artifact{{Path: "a b/ü.png", Size: 7, Mode: 0o755, SHA256: "c0ffee"}},
			ArtifactsLeft: 2, Duration: 1500 * time.Millisecond, Queued: time.Second, Claim: time.Millisecond,
			Warm: true, Tier: engi.TierGVisor, NotEnforced: []string{"memory"}, Error: "the kernel said no",
		},
	}
	return map[string]any{
		"execution": executionOf(x),
		"function run": functionRunOf(engi.FunctionRun{
			ID: "fnr_1", Owner: "ann", Function: "f", Event: "evt_1", State: engi.FunctionWaiting, Attempt: 2, Output: json.RawMessage(`{"a":1}`), Error: refusal,
			Wait:    &engi.FunctionWait{Step: "paid", Types: []string{"order.*"}, Subject: "ord_1", After: 7, Until: at(9)},
			Steps:   []engi.FunctionStep{{Name: "paid", Attempts: 1, Output: json.RawMessage(`7`), Error: refusal, Started: at(3), Ended: at(4)}},
			Created: at(0), Started: at(1), Ended: at(5),
		}),
		"execution queue": executionOf(engi.Execution{ID: "exe_2", State: engi.ExecutionQueued, Language: engi.Go, Template: "host", Created: at(0)}),
		"result empty":    resultOf("exe_3", engi.Result{Exit: engi.Exit{Cause: engi.CauseExited}, Duration: -1}),
		"summary":         summaryOf(x),
		"sandbox": sandboxOf(engi.Sandbox{
			ID: "sbx_1", Owner: "ann", Template: "base", Digest: "sha256:1", Pool: "base/python", Tier: engi.TierGVisor, Size: size,
			State: engi.Stopped, End: engi.CauseTimeout, Execution: "exe_1", Created: at(0), Stopped: at(1),
			Lifetime: engi.Lifetime{Timeout: time.Minute, Idle: time.Second, Max: time.Hour, OnTimeout: engi.EndHibernate, DiskOnly: true, AutoResume: true},
			Deadline: at(3), Started: at(1), Active: at(2), Snapshot: "snp_1", Metadata: map[string]string{"a": "b"}, Env: map[string]string{"SECRET": "never shown"},
			Volumes: []engi.VolumeMount{{Volume: "vol_1", Path: "/data"}}, Ports: engi.PortPolicy{Private: true, Host: "h"}, Disk: true, CPUQuota: engi.CPUQuota{VCPUs: 0.5, Window: time.Minute}, Throttled: true,
			Network: engi.NetworkPolicy{
				Mode: engi.NetworkRestricted, Allow: []string{"a"}, Deny: []string{"b"}, Group: "g", Name: "n",
				Grants: []engi.Grant{{Secret: "s", Hosts: []string{"h"}, As: engi.GrantHeader, Name: "n", Format: "token {}", Env: "E", Strip: true,
					Requests: []engi.RequestRule{{Host: "h", Methods: []string{"POST"}, Path: "/p", Body: []string{"b absent"}, MaxBody: 8, Action: engi.RequestAllow, Reason: "s"}}}},
				Requests: []engi.RequestRule{{Host: "h", Methods: []string{"GET"}, Path: "/p", Body: []string{"a absent"}, MaxBody: 7, Action: engi.RequestAsk, Reason: "r"}},
				Headers:  []engi.HeaderRule{{Host: "h", Headers: map[string]string{"A": "b"}}},
				Proxy:    &engi.UpstreamProxy{Address: "socks5://h:1", User: "u", Password: "never shown"},
				Limits:   engi.NetworkLimits{Up: 1, Down: 2, Connections: 3, NewConnections: 4, Lookups: 5, Total: 6},
				Detail:   map[string]any{"words": "of another surface"},
			},
			Notes: map[string]string{"n": "never shown"},
		}),
		"snapshot": snapshotOf(engi.Snapshot{
			ID: "snp_1", Owner: "ann", Name: "n", Sandbox: "sbx_1", Template: "base", Digest: "sha256:1", Tier: engi.TierGVisor, Size: size,
			Env: map[string]string{"SECRET": "never shown"}, Disk: true, Bytes: 1, Created: at(0), Used: at(1), Expires: at(2),
		}),
		"volume": volumeOf(engi.Volume{
			ID: "vol_1", Owner: "ann", Name: "n", Capacity: 2, Used: 1, Holder: "sbx_1", Created: at(0), Accessed: at(1), Expires: at(2),
		}),
		"secret": secretOn(engi.Secret{
			ID: "sec_1", Owner: "ann", Name: "n", Version: 2, Metadata: map[string]string{"a": "b"}, Hosts: []string{"h"}, Created: at(0), Updated: at(1),
		}),
		"network event": networkEventOf(engi.NetworkRecord{
			Seq: 1, Time: at(0), Sandbox: "sbx_1", Owner: "ann", Kind: engi.NetworkClose, Allowed: true, Protocol: "tcp", Host: "h\xff",
			Address: netip.MustParseAddrPort("[2001:db8::1]:443"), Rule: "*.h", Reason: "because", Up: 2, Down: 3,
		}),
		"network event without port": networkEventOf(engi.NetworkRecord{Seq: 2, Kind: engi.NetworkConnect, Protocol: "icmp", Address: netip.MustParseAddrPort("192.0.2.7:0"), Up: -1}),
		"sample": sampleOf(engi.Sample{
			Time: at(0), VCPUs: 1, CPUPercent: 2, Memory: 3, MemoryLimit: 4, MemoryCache: 5, DiskUsed: 6, DiskCapacity: 7, Processes: 8,
		}),
		"process": processOf(engi.ProcessInfo{ID: "p1", PID: 1, Tag: "t", Args: []string{"a\xff"}, Dir: "/", Started: at(0)}),
		"quota":   quotaOf(engi.Quota{Sandboxes: 1, PerDay: 2, VCPUs: 3, Memory: 4, Disk: 5, Volumes: 6, Snapshots: 7}),
		"template": templateOf(engi.Template{
			Name: "base", Digest: "sha256:1", Root: "/never/shown", Env: map[string]string{"A": "b"}, User: "user", UID: 1000, GID: 1000, Home: "/home/user",
			WorkDir: "/workspace", Shell: "/bin/bash", Ports: []int{80}, Private: true, Size: size,
			Languages: map[engi.Language]engi.Interpreter{engi.Python: {Path: "/usr/bin/python3", Warm: true}}, Built: at(0), Bytes: 1 << 30,
		}),
		"pool": poolOf(engi.PoolStatus{
			Template: "base", Digest: "sha256:1", Language: engi.Python, Target: 1, Max: 2, Ready: 3, Booting: 4, Used: 5, Waiting: 6,
		}),
		"key":            keyOf(engi.Key{ID: "key_1", Owner: "ann", Name: "laptop", Admin: true, Scopes: []engi.Scope{engi.ScopeRead}, Created: at(0), Expires: at(1), Revoked: at(2)}),
		"build log":      buildEventOf(engi.Progress{Step: 1, Steps: 2, Name: "fetch", Log: "a\xff", Done: 3, Total: 4}),
		"build progress": buildEventOf(engi.Progress{Step: 1, Steps: 2, Name: "fetch", Done: 3, Total: 4}),
	}
}

func TestNounsOnTheWire(t *testing.T) {
	var got bytes.Buffer
	enc := json.NewEncoder(&got)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(full()); err != nil {
		t.Fatal(err)
	}
	if flag.Lookup("update").Value.String() == "true" {
		if err := os.WriteFile(wireGolden, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(wireGolden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got.String(), "\n")); d != "" {
		t.Errorf("the wire has changed; if that is meant, run 'go test ./internal/server/rest -update' (-want +got):\n%s", d)
	}
}

// TestNothingIsForgotten holds that what is set in a noun is set on the wire.
// The exceptions say why.
func TestNothingIsForgotten(t *testing.T) {
	all := full()
	except := map[string]string{
		"execution.Result.Artifacts.ContentBase64": "only with its content at hand",
		"execution.Refusal.RequestID":              "refusals of records have no request",
		"execution.Refusal.Faults":                 "only with several",
		"summary.Refusal.RequestID":                "refusals of records have no request",
		"summary.Refusal.Faults":                   "only with several",
		"sandbox.Network.Proxy.Password":           "never shown",
		"network event.Error":                      "only of a stream's end",
		"key.Secret":                               "only in the answer that made the key",
		"build log.Template":                       "only with the result",
		"build log.Error":                          "only with an error",
	}
	for _, name := range []string{"execution", "summary", "sandbox", "snapshot", "volume", "secret", "network event", "sample", "process", "quota", "template", "pool", "key", "build log"} {
		walk(t, name, reflect.ValueOf(all[name]), except)
	}
	for field := range except {
		t.Errorf("%s is set after all", field)
	}
}

func walk(t *testing.T, at string, v reflect.Value, except map[string]string) {
	if _, ok := except[at]; ok && v.IsZero() {
		delete(except, at)
		return
	}
	switch {
	case v.IsZero():
		t.Errorf("%s is forgotten", at)
	case v.Kind() == reflect.Pointer:
		walk(t, at, v.Elem(), except)
	case v.Type() == reflect.TypeFor[time.Time]():
		if v.Interface().(time.Time).Location() != time.UTC {
			t.Errorf("%s is not in UTC", at)
		}
	case v.Kind() == reflect.Struct:
		for f, field := range v.Fields() {
			walk(t, at+"."+f.Name, field, except)
		}
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct:
		for i := range v.Len() {
			walk(t, at, v.Index(i), except)
		}
	}
}
