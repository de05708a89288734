package app

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/engi-dev/engi/internal/engi"
)

// A Span is a duration in a configuration, like "30s".
type Span time.Duration

// UnmarshalText reads a duration. It reports Invalid.
func (s *Span) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	if err != nil {
		return engi.Errorf(engi.Invalid, "%q is not a duration", text).WithRemedy("write it like 30s or 5m")
	}
	*s = Span(d)
	return nil
}

// MarshalText is the inverse of UnmarshalText.
func (s Span) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// String returns s without trailing zero parts.
func (s Span) String() string {
	text := time.Duration(s).String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-2]
		}
	}
	return text
}

// Settings holds the thresholds of alerts. A threshold of 0 disables its alert.
type Settings struct {
	Health Span `toml:"health" env:"HEALTH" help:"time between checks of apps that are used"`
	After  Span `toml:"after" env:"AFTER" help:"how long an app must be beyond a threshold for an alert, and within it for its end"`

	Memory  float64 `toml:"memory" env:"MEMORY" help:"share of its sandbox's memory that an app may use; 0 is no threshold, here and below"`
	Errors  float64 `toml:"errors" env:"ERRORS" help:"share of the last 20 operations that may fail"`
	Latency Span    `toml:"latency" env:"LATENCY" help:"time that its server may take to answer"`
	Files   Span    `toml:"files" env:"FILES" help:"time that reading or writing its files may take"`
	Cache   float64 `toml:"cache" env:"CACHE" help:"share of its files that must not need reading again"`
	Startup Span    `toml:"startup" env:"STARTUP" help:"time from the creation of its sandbox to its server's first answer"`

	OnMemory  engi.AppAction `toml:"on_memory" env:"ON_MEMORY" help:"what is done then: none, check_network, refresh_files, restart_server, restart_sandbox (on its disk) or hibernate"`
	OnErrors  engi.AppAction `toml:"on_errors" env:"ON_ERRORS" help:"the same for errors"`
	OnLatency engi.AppAction `toml:"on_latency" env:"ON_LATENCY" help:"the same for latency"`
	OnFiles   engi.AppAction `toml:"on_files" env:"ON_FILES" help:"the same for files"`
	OnCache   engi.AppAction `toml:"on_cache" env:"ON_CACHE" help:"the same for cache"`
	OnStartup engi.AppAction `toml:"on_startup" env:"ON_STARTUP" help:"the same for startup"`
}

// DefaultSettings returns settings with a threshold for every metric.
func DefaultSettings() Settings {
	return Settings{
		Health: Span(defaultHealth), After: Span(time.Minute),
		Memory: 0.8, Errors: 0.1, Latency: Span(5 * time.Second), Files: Span(5 * time.Second), Cache: 0.5, Startup: Span(time.Minute),
		OnMemory: engi.AppActRestartServer, OnErrors: engi.AppActRestartSandbox, OnLatency: engi.AppActCheckNetwork, OnFiles: engi.AppActCheckNetwork,
		OnCache: engi.AppActRefreshFiles, OnStartup: engi.AppActNone,
	}
}

// Validate reports Invalid for settings that cannot work.
func (s Settings) Validate() error {
	if s.Health < Span(time.Second) || min(s.After, s.Latency, s.Files, s.Startup) < 0 {
		return engi.Errorf(engi.Invalid, "[apps] has a negative time, or a health below a second")
	}
	for name, share := range map[string]float64{"memory": s.Memory, "errors": s.Errors, "cache": s.Cache} {
		if !(share >= 0 && share <= 1) {
			return engi.Errorf(engi.Invalid, "apps.%s is %v, not a share between 0 and 1", name, share).WithRemedy("write 0.8 for 80 %%, or 0 for no threshold")
		}
	}
	for _, a := range []engi.AppAction{s.OnMemory, s.OnErrors, s.OnLatency, s.OnFiles, s.OnCache, s.OnStartup} {
		if !slices.Contains(engi.AppActions(), a) {
			return engi.Errorf(engi.Invalid, "[apps] has the action %q", a).WithRemedy("use one of %v", engi.AppActions())
		}
	}
	return nil
}

const metricServer = "server"

// A measure is the value of one metric of an app.
type measure struct {
	metric       string
	value, limit float64
	known        bool // the value is known
	low          bool // the metric exceeds its threshold if it is lower
	action       engi.AppAction
	text         string // text of the alert
}

func (m measure) beyond() bool {
	if m.low {
		return m.value < m.limit
	}
	return m.value > m.limit
}

// measures returns the values of all metrics that have a threshold.
func (s *Service) measures(a *app, h health, most int64) []measure {
	o := s.opt.Alerts
	hits, readings := a.copy.ratio()
	share := func(x float64) string { return fmt.Sprintf("%.0f %%", 100*x) }
	memory := float64(h.memory) / float64(max(1, most))
	files := a.copy.usual()
	long := func(d time.Duration) string { return d.Round(time.Millisecond).String() }
	all := []measure{
		{metric: "memory", value: memory, limit: o.Memory, known: h.memory > 0, action: o.OnMemory, text: fmt.Sprintf("the sandbox uses %s of its memory, more than %s", share(memory), share(o.Memory))},
		{metric: "errors", value: h.errors(), limit: o.Errors, known: len(h.failed) >= fewOutcomes, action: o.OnErrors, text: fmt.Sprintf("%s of the last operations failed, more than %s", share(h.errors()), share(o.Errors))},
		{metric: "latency", value: h.latency.Seconds(), limit: time.Duration(o.Latency).Seconds(), known: true, action: o.OnLatency, text: fmt.Sprintf("the server takes %s to answer, more than %s", long(h.latency), o.Latency)},
		{metric: "files", value: files.Seconds(), limit: time.Duration(o.Files).Seconds(), known: files > 0, action: o.OnFiles, text: fmt.Sprintf("reading or writing files takes %s, more than %s", long(files), o.Files)},
		{metric: "cache", value: hits, limit: o.Cache, known: readings >= fewOutcomes, low: true, action: o.OnCache, text: fmt.Sprintf("only %s of the files are known without reading them again, less than %s", share(hits), share(o.Cache))},
		{metric: "startup", value: h.startup.Seconds(), limit: time.Duration(o.Startup).Seconds(), known: h.startup > 0, action: o.OnStartup, text: fmt.Sprintf("the server was up after %s, later than %s", long(h.startup), o.Startup)},
	}
	all = slices.DeleteFunc(all, func(m measure) bool { return m.limit == 0 })
	down := measure{metric: metricServer, limit: 0.5, known: true, action: engi.AppActRestartServer, text: "the server does not answer and is started again"}
	if !h.healthy {
		down.value = 1
	}
	return append(all, down)
}

// turned returns the measures that have been on the other side of their thresholds than
// the alerts say for long enough. A server that does not answer counts at once.
func (a *app) turned(all []measure, alerts []engi.AppAlert, after time.Duration) (turned []measure) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.health.turning == nil {
		a.health.turning = map[string]time.Time{}
	}
	for _, m := range all {
		active := slices.ContainsFunc(alerts, func(x engi.AppAlert) bool { return x.Metric == m.metric })
		since, ok := a.health.turning[m.metric]
		switch {
		case !m.known || m.beyond() == active:
			delete(a.health.turning, m.metric)
			continue
		case !ok:
			since = now
			a.health.turning[m.metric] = now
		}
		if now.Sub(since) >= after || m.metric == metricServer && !active {
			turned = append(turned, m)
		}
	}
	return turned
}

// judge raises and ends alerts, each with its event in one transaction, so that each has
// exactly one event however often the node is killed. The caller holds the app's lock.
func (s *Service) judge(ctx context.Context, u *use, all []measure) error {
	turned := u.app.turned(all, u.rec.Alerts, time.Duration(s.opt.Alerts.After))
	if len(turned) == 0 {
		return nil
	}
	var raised []string
	r, err := s.opt.Store.Change(ctx, u.rec.ID, func(r *Record, tx Tx) error {
		raised = nil
		for _, m := range turned {
			i := slices.IndexFunc(r.Alerts, func(x engi.AppAlert) bool { return x.Metric == m.metric })
			switch {
			case i >= 0 && !m.beyond():
				if err := resolve(r, tx, i, m.value); err != nil {
					return err
				}
			case i < 0 && m.beyond():
				x := engi.AppAlert{Metric: m.metric, Value: m.value, Limit: m.limit, Action: cmp.Or(m.action, engi.AppActNone), Text: m.text, Since: time.Now().UTC()}
				if m.metric == metricServer {
					x.Value, x.Limit, x.Acted = 0, 0, true // every check repeats this
				}
				var err error
				if x.Seq, err = tx.Emit(engi.EventAppAlert, eventData{Metric: x.Metric, Value: x.Value, Limit: x.Limit, Action: x.Action, Text: x.Text}); err != nil {
					return err
				}
				r.Alerts, raised = append(r.Alerts, x), append(raised, m.metric)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	u.rec = r
	for _, metric := range raised {
		s.meter.warned.WithLabelValues(metric).Inc()
	}
	u.app.mu.Lock()
	defer u.app.mu.Unlock()
	for _, m := range turned {
		delete(u.app.health.turning, m.metric)
	}
	return nil
}

// resolve ends an alert of r.
func resolve(r *Record, tx Tx, i int, value float64) error {
	x := r.Alerts[i]
	r.Alerts = slices.Delete(slices.Clone(r.Alerts), i, i+1)
	_, err := tx.Emit(engi.EventAppAlertResolved, eventData{Metric: x.Metric, Value: value, Limit: x.Limit, Alert: x.Seq})
	return err
}

// calm ends all alerts of an app that is no longer running.
func calm(r *Record, tx Tx) error {
	for len(r.Alerts) > 0 {
		if err := resolve(r, tx, 0, 0); err != nil {
			return err
		}
	}
	return nil
}

// act carries out the actions of alerts that are still to be done: of several, the
// most disruptive one. It may leave the sandbox. The caller holds the app's lock.
func (s *Service) act(ctx context.Context, u *use) error {
	todo := engi.AppActNone
	pending := false
	for _, x := range u.rec.Alerts {
		if !x.Acted {
			pending = true
			if slices.Index(engi.AppActions(), x.Action) > slices.Index(engi.AppActions(), todo) {
				todo = x.Action
			}
		}
	}
	if !pending {
		return nil
	}
	if u.rec.Directory != "" && (todo == engi.AppActRestartSandbox || todo == engi.AppActHibernate) {
		todo = engi.AppActRestartServer // others use the sandbox
	}
	var err error
	switch todo {
	case engi.AppActRefreshFiles:
		u.rec, err = s.capture(ctx, u.app, u.rec, u.g, u.dir)
	case engi.AppActRestartServer:
		err = s.restartServer(ctx, u)
	case engi.AppActRestartSandbox, engi.AppActHibernate:
		u.leave()
		u.leave = func() {}
		cold := todo == engi.AppActRestartSandbox
		if err = s.opt.Lifecycle.Hibernate(ctx, engi.Everyone, u.rec.Sandbox, cold); err == nil && cold {
			var again *use
			if again, err = s.enter(ctx, u.app, false); err == nil {
				u.rec, u.g, u.leave = again.rec, again.g, again.leave
			}
		}
	}
	if err != nil {
		return engi.Errorf(engi.KindOf(err), "%s: %w", todo, err)
	}
	u.app.mu.Lock()
	u.app.health.failed = nil // the counts start again
	u.app.mu.Unlock()
	u.rec, err = s.opt.Store.Change(ctx, u.rec.ID, func(r *Record, _ Tx) error {
		r.Alerts = slices.Clone(r.Alerts)
		for i := range r.Alerts {
			r.Alerts[i].Acted = true
		}
		return nil
	})
	return err
}

// restartServer restarts the server of an app, and records the result.
func (s *Service) restartServer(ctx context.Context, u *use) (err error) {
	if u.rec, err = s.setState(ctx, u.rec.ID, engi.AppStarting, nil); err != nil {
		return err
	}
	if err := u.restart(ctx); err != nil {
		_, e := s.setState(ctx, u.rec.ID, engi.AppFailed, err)
		return e
	}
	u.rec, err = s.setState(ctx, u.rec.ID, engi.AppReady, nil)
	return err
}

// way returns a text with the time that the sandbox itself takes to answer, which shows whether the sandbox or the
// server is slow.
func (u *use) way(ctx context.Context) string {
	began := time.Now()
	if _, err := u.g.Stat(ctx, u.dir); err != nil {
		return "; its sandbox does not answer"
	}
	return fmt.Sprintf("; its sandbox answers within %v", time.Since(began).Round(100*time.Microsecond))
}
