"""The cluster as a whole: one look feeds all browsers.

samples    what the cluster said at a moment, and what is read off two of them
history    the past, by second and by minute, in bounded memory
alarms     what is wrong, in words
picture    what falls due, by topic and step of time
pictures   asks the gateway for one
prometheus the past beyond what the console keeps
events     a stream of events to a browser
watch      looks at the cluster, and tells those who watch
"""
