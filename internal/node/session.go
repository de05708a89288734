package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/engi-dev/engi/internal/access/secret"
	"github.com/engi-dev/engi/internal/engi"
	"github.com/engi-dev/engi/internal/node/config"
	"github.com/engi-dev/engi/internal/sandbox/disk"
	"github.com/engi-dev/engi/internal/sandbox/disk/blob"
	"github.com/engi-dev/engi/internal/session"
	"github.com/engi-dev/engi/internal/session/backup"
	"github.com/engi-dev/engi/internal/session/deps"
	"github.com/engi-dev/engi/internal/store"
)

// sessions holds the session manager and the installer of its packages.
type sessions struct {
	*session.Manager
	packages interface {
		session.Packages
		Run(ctx context.Context, ready func()) error
	}
}

// openSessions opens sessions, with packages if they are enabled, else with an
// existing template.
func (n *Node) openSessions(ctx context.Context, metrics prometheus.Registerer, template string) error {
	c, log := n.config, n.log.With("component", "session")
	s := c.Sessions
	if err := s.CheckEnvironment(os.LookupEnv); err != nil {
		return err
	}
	for _, note := range s.Notes() {
		log.Info(note)
	}
	all := &sessions{packages: deps.None(template)}
	if s.Enabled {
		packages, err := deps.New(ctx, deps.Options{
			Templates: n.templates, Base: s.Template, Packages: s.Packages(), Registry: c.Registries.Of(s.Template).NPM, File: filepath.Join(c.DataDir, "packages"), Log: log,
		})
		if err != nil {
			return err
		}
		all.packages = packages
	}
	blobs, err := blob.Open(cmp.Or(s.Workspaces, filepath.Join(c.DataDir, "workspaces")))
	if err != nil {
		return err
	}
	ttl, timeout, capacity, memory := s.Values()
	policy, grants := sessionNetwork(c)
	all.Manager, err = session.Open(ctx, session.Options{
		CheckNetwork: n.checkNetwork,
		Sandboxes:    n.fleet.Sandboxes(), Lifecycle: n.fleet.Lifecycle(), Snapshots: n.snapshots, Volumes: n.volumes, Shared: n.workspaces, Store: store.Sessions(n.db), Packages: all.packages,
		Workspaces: backup.New(backup.Options{Blobs: blobs, Quota: int64(s.WorkspacesQuota), Log: log}), Quota: c.Quota.Of, Refused: n.refusals.Add, Meter: newSessionMeter(metrics), Log: log,
		Defaults: session.Defaults{
			Mode: engi.SessionMode(s.Mode), Size: engi.Size{Memory: memory}, Capacity: capacity, TTL: ttl, Dormancy: time.Duration(s.Dormancy),
			Timeout: timeout, Longest: time.Duration(s.MaxDuration), MaxAwake: time.Duration(c.Sandboxes.Max), CPUQuota: engi.CPUQuota{VCPUs: s.CPUQuota, Window: time.Duration(s.CPUWindow)}, Network: policy, Grants: grants,
		},
	})
	n.sessions = all
	return err
}

// Run installs packages and manages sessions until ctx ends.
func (s *sessions) Run(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	installed := make(chan error, 1)
	go func() { installed <- s.packages.Run(ctx, func() {}) }()
	err := s.Manager.Run(ctx, ready)
	cancel()
	return errors.Join(err, <-installed)
}

// Sessions returns the session manager.
func (n *Node) Sessions() engi.Sessions { return n.sessions }

// sessionNetwork returns the network policy of sessions, which allows the hosts
// of packages and of the configuration, and the grants of packages'
// secrets.
func sessionNetwork(c config.Config) (p engi.NetworkPolicy, grants []engi.Grant) {
	p = engi.NetworkPolicy{Mode: engi.NetworkNone, Allow: slices.Clone(c.Sessions.Allow)}
	for _, d := range c.Sessions.Packages() {
		if d.Secret == "" && c.Sessions.Enabled {
			p.Allow = append(p.Allow, d.Hosts...)
		}
	}
	for _, s := range packageSecrets(c) {
		grants = append(grants, s.Grant())
	}
	if len(p.Allow)+len(grants) > 0 {
		p.Mode = engi.NetworkRestricted
	}
	return p, grants
}

// packageSecrets returns the secrets of sessions' packages, with values from
// the environment.
func packageSecrets(c config.Config) (all []secret.Package) {
	if !c.Sessions.Enabled {
		return nil
	}
	for _, d := range c.Sessions.Packages() {
		if d.Secret != "" {
			all = append(all, secret.Package{Variable: d.Secret, Hosts: d.Hosts, Value: os.Getenv(d.Secret)})
		}
	}
	return all
}

// diagnoseSessions checks the sessions section of c and returns a text about the template with
// their packages.
func diagnoseSessions(ctx context.Context, c config.Config) (detail string, err error) {
	if err := c.Sessions.CheckEnvironment(os.LookupEnv); err != nil {
		return "", err
	}
	templates, err := disk.Open(ctx, disk.Options{Dir: templatesDir(c)})
	if err != nil {
		return "", err
	}
	packages, err := deps.New(ctx, deps.Options{Templates: templates, Base: c.Sessions.Template, Packages: c.Sessions.Packages()})
	if err != nil {
		return "", err
	}
	s := packages.Status()
	if s.State != engi.DependenciesReady {
		return "", engi.Errorf(engi.Unavailable, "the template %s with the packages of sessions is not built", s.Wanted).
			WithRemedy("the server builds it at its start; 'engi session deps' shows the progress")
	}
	return fmt.Sprintf("%d packages in template %s", len(s.Packages), s.Wanted), nil
}

// A sessionMeter implements [session.Meter] with Prometheus metrics.
type sessionMeter struct {
	boots, runs *prometheus.HistogramVec
	sessions    *prometheus.GaugeVec
}

func newSessionMeter(r prometheus.Registerer) session.Meter {
	buckets := []float64{.01, .025, .05, .1, .2, .3, .5, .75, 1, 2, 5, 10, 30, 60, 300}
	m := sessionMeter{
		boots:    prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "engi_session_boot_seconds", Help: "Time until a session had a sandbox.", Buckets: buckets}, nil),
		runs:     prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "engi_session_code_seconds", Help: "Time of code run in sessions.", Buckets: buckets}, []string{"outcome"}),
		sessions: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "engi_sessions", Help: "Sessions alive, those with a sandbox, and runs that wait for their turn."}, []string{"what"}),
	}
	r.MustRegister(m.boots, m.runs, m.sessions)
	return m
}

func (m sessionMeter) Booted(took time.Duration) { m.boots.WithLabelValues().Observe(took.Seconds()) }

func (m sessionMeter) Ran(outcome string, took time.Duration) {
	m.runs.WithLabelValues(outcome).Observe(took.Seconds())
}

func (m sessionMeter) Sessions(alive, sandboxes, waiting int) {
	m.sessions.WithLabelValues("alive").Set(float64(alive))
	m.sessions.WithLabelValues("sandboxes").Set(float64(sandboxes))
	m.sessions.WithLabelValues("waiting").Set(float64(waiting))
}
