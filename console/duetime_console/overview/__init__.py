"""The cluster as a whole: one reader feeds all browsers.

samples    the state of the cluster at one time, and figures from two of them
history    the past, by second and by minute, in bounded memory
alarms     current faults, in words
picture    messages due, by topic and step of time
pictures   queries the gateway for a picture
prometheus the past beyond the console's memory
events     a stream of events to a browser
watch      reads the cluster, and informs all watchers
"""
