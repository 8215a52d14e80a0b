#!/bin/sh
# Posts a verdict to a Slack channel.
#
#   export SLACK_WEBHOOK_URL=https://hooks.slack.com/services/...
#   hangwatch --hook docs/hooks/slack.sh torchrun ... train.py
#
# hangwatch calls it with the directory of the report as its argument, and with
# HANGWATCH_STATE (slow, hang, failed, desync), HANGWATCH_HEADLINE, HANGWATCH_KIND,
# HANGWATCH_CULPRITS (ranks, with commas), HANGWATCH_RUN_ID and HANGWATCH_REPORT set.
set -eu

: "${SLACK_WEBHOOK_URL:?set it to the address of an incoming webhook}"

# Python makes the JSON: a headline may hold quotes, and what an exception said.
message=$(
    python3 - <<'EOF_PYTHON'
import json
import os


def told(name):
    """A variable; &, < and > mean something in Slack (api.slack.com: Escaping text)."""
    text = os.environ.get(f"HANGWATCH_{name}", "")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


text = f"*{told('STATE').upper()}* in run {told('RUN_ID')}: {told('HEADLINE')}"
if told("REPORT"):
    text += f"\nreport on {os.uname().nodename}: {told('REPORT')}"
print(json.dumps({"text": text}))
EOF_PYTHON
)

printf '%s' "$message" | curl --fail --silent --show-error --max-time 30 \
    --header 'Content-Type: application/json' --data-binary @- "$SLACK_WEBHOOK_URL"
