// SPDX-License-Identifier: Apache-2.0

// Package tig has what nerdctl names of its module for tests, which no proxy serves.
package tig

// T is what testing.T has.
type T interface {
	Helper()
	FailNow()
	Fail()
	Log(args ...any)
	Name() string
	TempDir() string
}
