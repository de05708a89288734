package rest

import (
	"errors"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A meter counts requests. A nil meter does nothing.
type meter struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	flying   prometheus.Gauge
}

func newMeter(reg prometheus.Registerer) *meter {
	if reg == nil {
		return nil
	}
	return &meter{
		requests: register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "engi_http_requests_total",
			Help: "Requests answered, by route and status.",
		}, []string{"route", "status"})),
		seconds: register(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "engi_http_request_seconds",
			Help:    "Time from the first byte of a request to the last byte of its answer; streams last as long as what they watch.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"route"})),
		flying: register(reg, prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "engi_http_requests_in_flight",
			Help: "Requests being served now.",
		})),
	}
}

// register returns c, or the collector that is already registered under its name.
func register[C prometheus.Collector](reg prometheus.Registerer, c C) C {
	err := reg.Register(c)
	if before, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if same, ok := before.ExistingCollector.(C); ok {
			return same
		}
	}
	if err != nil {
		panic(err) // two packages use one name
	}
	return c
}

// begin counts the start of a request.
func (m *meter) begin() {
	if m != nil {
		m.flying.Inc()
	}
}

// end counts the end of a request.
func (m *meter) end(c *call, took time.Duration) {
	if m == nil {
		return
	}
	m.flying.Dec()
	route := "none"
	if c.route != nil {
		route = c.route.Pattern
	}
	m.requests.WithLabelValues(route, strconv.Itoa(c.status)).Inc()
	m.seconds.WithLabelValues(route).Observe(took.Seconds())
}
