// Package sessions assembles the sessions of a node from its configuration:
// what is installed for them, what they may reach, where the secrets of
// packages go, what is counted. Only package node uses it.
package sessions

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/engi-dev/engi"
	"github.com/engi-dev/engi/disk"
	"github.com/engi-dev/engi/fleet"
	"github.com/engi-dev/engi/node/config"
	"github.com/engi-dev/engi/session"
	"github.com/engi-dev/engi/session/deps"
)

// Rooms are those of the node that sessions need.
type Options struct {
	Sandboxes engi.Sandboxes
	Lifecycle engi.Lifecycle
	Volumes   engi.Volumes
	Templates engi.Templates
	Store     session.Store
	Metrics   prometheus.Registerer
	Log       *slog.Logger
}

// Sessions are a node's. It is safe for concurrent use.
type Sessions struct {
	*session.Manager
	packages *deps.Manager
}

// Open makes the sessions of c, or returns nil where it has none. Nothing runs
// before Run.
func Open(ctx context.Context, c config.Config, r Options) (_ *Sessions, err error) {
	s := c.Sessions
	if !s.Enabled {
		return nil, nil
	}
	if err := s.CheckEnvironment(os.LookupEnv); err != nil {
		return nil, err
	}
	for _, note := range s.Notes() {
		r.Log.Info(note)
	}
	packages, err := deps.New(ctx, deps.Options{Templates: r.Templates, Base: s.Template, Packages: s.Packages(), Registry: c.Mirrors.Of(s.Template).NPM, File: filepath.Join(c.DataDir, "packages"), Log: r.Log})
	if err != nil {
		return nil, err
	}
	ttl, timeout, capacity, memory := s.Values()
	m, err := session.Open(ctx, session.Options{
		Sandboxes: r.Sandboxes, Lifecycle: r.Lifecycle, Volumes: r.Volumes, Store: r.Store, Packages: packages, Meter: newMeter(r.Metrics), Log: r.Log,
		Defaults: session.Defaults{
			Mode: engi.SessionMode(s.Mode), Size: engi.Size{Memory: memory}, Capacity: capacity, TTL: ttl, Dormancy: time.Duration(s.Dormancy),
			Timeout: timeout, MaxAwake: time.Duration(c.Sandboxes.Max), Network: network(s), Grants: grants(s),
		},
	})
	return &Sessions{m, packages}, err
}

// Run keeps packages installed and looks after sessions until ctx ends.
func (s *Sessions) Run(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	installed := make(chan error, 1)
	go func() { installed <- s.packages.Run(ctx, func() {}) }()
	err := s.Manager.Run(ctx, ready)
	cancel()
	return errors.Join(err, <-installed)
}

// network is what sessions may reach: the hosts of packages and what the operator
// allows beside them.
func network(s config.Sessions) engi.NetworkPolicy {
	p := engi.NetworkPolicy{Mode: engi.NetworkNone, Allow: slices.Clone(s.Allow)}
	for _, d := range s.Packages() {
		if d.Secret == "" {
			p.Allow = append(p.Allow, d.Hosts...)
		}
	}
	if len(p.Allow) > 0 || len(grants(s)) > 0 {
		p.Mode = engi.NetworkRestricted
	}
	return p
}

// packageSecret begins the names of packages' secrets. They are not the
// owners', and may go nowhere but to the hosts of their package.
const packageSecret = "sandbox."

func grants(s config.Sessions) (all []engi.Grant) {
	for _, d := range s.Packages() {
		if d.Secret != "" {
			all = append(all, engi.Grant{Secret: packageSecret + d.Secret, Hosts: d.Hosts, As: engi.GrantPlaceholder, Env: d.Secret})
		}
	}
	return all
}

// Reveal is reveal, but for the secrets of packages, whose values are in the
// environment.
func Reveal(c config.Config, reveal func(context.Context, engi.Owner, string) (string, error)) func(context.Context, engi.Owner, string) (string, error) {
	return func(ctx context.Context, owner engi.Owner, name string) (string, error) {
		variable, ok := strings.CutPrefix(name, packageSecret)
		if ok && c.Sessions.Enabled {
			for _, g := range grants(c.Sessions) {
				if g.Env == variable {
					if v, ok := os.LookupEnv(variable); ok {
						return v, nil
					}
				}
			}
		}
		return reveal(ctx, owner, name)
	}
}

// A wall keeps the secrets of packages to their hosts, whoever asks.
type wall struct {
	fleet.Wall
	grants []engi.Grant
}

// Wall is w, which in addition refuses policies that let the secrets of packages
// go elsewhere than to the packages' hosts. Nil stays nil.
func Wall(c config.Config, w fleet.Wall) fleet.Wall {
	if w == nil {
		return nil
	}
	var own []engi.Grant
	if c.Sessions.Enabled {
		own = grants(c.Sessions)
	}
	return wall{w, own}
}

func (w wall) check(p engi.NetworkPolicy) error {
	for _, g := range p.Grants {
		if !strings.HasPrefix(g.Secret, packageSecret) {
			continue
		}
		ours := slices.ContainsFunc(w.grants, func(own engi.Grant) bool {
			return own.Secret == g.Secret && !slices.ContainsFunc(g.Hosts, func(h string) bool { return !slices.Contains(own.Hosts, h) })
		})
		if !ours {
			return engi.Errorf(engi.Denied, "secret %s may not go to %s", g.Secret, strings.Join(g.Hosts, ", ")).
				WithRemedy("it belongs to a package of [[sandbox.dependencies]] and goes to that package's hosts only")
		}
	}
	for _, h := range p.Headers {
		for _, v := range h.Headers {
			if strings.Contains(v, "secrets."+packageSecret) {
				return engi.Errorf(engi.Denied, "a header names the secret of a package").WithRemedy("use a secret of your own")
			}
		}
	}
	return nil
}

// Check implements fleet.Wall.
func (w wall) Check(p engi.NetworkPolicy) error {
	if err := w.check(p); err != nil {
		return err
	}
	return w.Wall.Check(p)
}

// Open implements fleet.Wall.
func (w wall) Open(ctx context.Context, id engi.SandboxID, owner engi.Owner, p engi.NetworkPolicy) (engi.NetworkSetup, error) {
	if err := w.check(p); err != nil {
		return engi.NetworkSetup{}, err
	}
	return w.Wall.Open(ctx, id, owner, p)
}

// Diagnose says what is wrong with the section of c, and else how its packages
// are, in a directory of templates.
func Diagnose(ctx context.Context, c config.Config, dir string) (detail string, err error) {
	if err := c.Sessions.CheckEnvironment(os.LookupEnv); err != nil {
		return "", err
	}
	templates, err := disk.Open(ctx, disk.Options{Dir: dir})
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
			WithRemedy("the server builds it when it starts; 'engi session deps' shows how that goes")
	}
	return fmt.Sprintf("%d packages in template %s", len(s.Packages), s.Wanted), nil
}

// A meter counts what sessions do.
type meter struct {
	boots, runs *prometheus.HistogramVec
	now         *prometheus.GaugeVec
}

func newMeter(r prometheus.Registerer) session.Meter {
	buckets := []float64{.01, .025, .05, .1, .2, .3, .5, .75, 1, 2, 5, 10, 30, 60, 300}
	m := meter{
		boots: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "engi_session_boot_seconds", Help: "Time until a session had a sandbox.", Buckets: buckets}, nil),
		runs:  prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "engi_session_code_seconds", Help: "Time of code run in sessions.", Buckets: buckets}, []string{"outcome"}),
		now:   prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "engi_sessions", Help: "Sessions alive, those with a sandbox, and runs that wait for their turn."}, []string{"what"}),
	}
	r.MustRegister(m.boots, m.runs, m.now)
	return m
}

func (m meter) Booted(took time.Duration) { m.boots.WithLabelValues().Observe(took.Seconds()) }

func (m meter) Ran(outcome string, took time.Duration) {
	m.runs.WithLabelValues(outcome).Observe(took.Seconds())
}

func (m meter) Sessions(alive, sandboxes, waiting int) {
	m.now.WithLabelValues("alive").Set(float64(alive))
	m.now.WithLabelValues("sandboxes").Set(float64(sandboxes))
	m.now.WithLabelValues("waiting").Set(float64(waiting))
}
