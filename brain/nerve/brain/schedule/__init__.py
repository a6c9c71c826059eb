"""Who runs what and when: claims, Runs from restore to their classified end, settlement and scans."""
