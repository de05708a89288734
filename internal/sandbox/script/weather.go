package script

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"github.com/engi-dev/engi/internal/engi"
)

// WeatherURL is the public API of Open-Meteo.
const WeatherURL = "https://api.open-meteo.com/v1/forecast"

// Weather returns api.getWeather: the current weather at a place, from Open-Meteo or
// a service with the same API. Missing coordinates are taken from the hints of the
// run. It uses the client for the host of the service.
func Weather(service string, clientFor func(host string) *http.Client) (API, error) {
	u, err := url.Parse(service)
	if err != nil || u.Host == "" {
		return API{}, engi.Errorf(engi.Invalid, "%.100q is not the URL of a weather service", service)
	}
	client := clientFor(u.Host)
	type place struct {
		Latitude  *float64 `json:"latitude"`
		Longitude *float64 `json:"longitude"`
	}
	return API{
		ScriptAPI: engi.ScriptAPI{
			Name:      "getWeather",
			Signature: "(coords?: { latitude?: number; longitude?: number }) => Promise<Weather>",
			Types: `interface Weather {
  latitude: number; longitude: number; timezone: string;
  current: Record<string, number | string>; current_units: Record<string, string>;
  daily?: Record<string, (number | string)[]>; hourly?: Record<string, (number | string)[]>;
}`,
			Description: "Returns the current weather at a place; without coordinates, at that of the request.",
			Schema:      schema(`{"type":"object","properties":{"latitude":{"type":"number"},"longitude":{"type":"number"}}}`),
		},
		Call: func(ctx context.Context, c Call) (any, error) {
			var at place
			if err := c.Into(&at); err != nil {
				return nil, err
			}
			latitude, err := coordinateOf("latitude", at.Latitude, c.Hints, 90)
			if err != nil {
				return nil, err
			}
			longitude, err := coordinateOf("longitude", at.Longitude, c.Hints, 180)
			if err != nil {
				return nil, err
			}
			question := *u
			q := question.Query()
			q.Set("latitude", latitude)
			q.Set("longitude", longitude)
			q.Set("current", "temperature_2m,relative_humidity_2m,apparent_temperature,precipitation,weather_code,wind_speed_10m")
			q.Set("daily", "sunrise,sunset,temperature_2m_max,temperature_2m_min")
			q.Set("timezone", "auto")
			question.RawQuery = q.Encode()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, question.String(), nil)
			if err != nil {
				return nil, engi.Errorf(engi.Internal, "get the weather: %v", err)
			}
			return fetchJSON(ctx, client, req)
		},
	}, nil
}

// coordinateOf returns a coordinate from the argument, or from the hints if the argument is nil.
func coordinateOf(name string, passed *float64, hints map[string]string, most float64) (string, error) {
	var v float64
	switch hint, ok := hints[name]; {
	case passed != nil:
		v = *passed
	case ok:
		var err error
		if v, err = strconv.ParseFloat(hint, 64); err != nil {
			return "", engi.Errorf(engi.Invalid, "the hint %s is not a number", name)
		}
	default:
		return "", engi.Errorf(engi.Invalid, "%s is missing: pass it, or send it as a hint", name)
	}
	if !(v >= -most && v <= most) {
		return "", engi.Errorf(engi.Invalid, "%s must be between -%g and %g", name, most, most)
	}
	return strconv.FormatFloat(v, 'f', -1, 64), nil
}
