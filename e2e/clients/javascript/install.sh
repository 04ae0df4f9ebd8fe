#!/usr/bin/env bash
# Installs the clients of JavaScript as package-lock.json has them. Nothing is done when they are.
set -euo pipefail
cd "$(dirname "$0")"

fail() { printf 'clients: %s\n' "$1" >&2; exit 2; }

command -v node > /dev/null || fail "node is missing; install Node.js 20 or newer, with npm."
node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' ||
  fail "node is $(node --version); install Node.js 20 or newer, with npm."
command -v npm > /dev/null || fail "npm is missing; install it beside Node.js."
wanted=$(cat package.json package-lock.json | sha256sum)
[ "$(cat node_modules/.installed 2>/dev/null)" != "$wanted" ] || exit 0
npm ci --ignore-scripts --loglevel=error --no-progress ||
  fail "npm ci has failed (in e2e/clients/javascript)."
echo "$wanted" > node_modules/.installed
