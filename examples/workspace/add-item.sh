#!/bin/sh
# A tool with a side effect and a slow end: it adds a line, then waits for a phone to take the new list.
echo "$1" >> shopping.txt
echo "added $1; the phone has the new list"
sleep "${PHONE_SECONDS:-1}"
