/* Tells a surgetank daemon of bursts to come. C99 and POSIX alone; include it in an application.
 *
 *     char why[256];
 *     if (surgetank_boost(NULL, "data", 8ULL << 30, 20.0, why, sizeof why) != 0)
 *         fprintf(stderr, "no boost: %s\n", why);
 *     ... the checkpoint ...
 *     surgetank_drain(NULL, "data", why, sizeof why);
 *
 * Only root and the daemon's own user may talk to the daemon. Each call is one connection, and waits for at most 30 s.
 */
#ifndef SURGETANK_H
#define SURGETANK_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define SURGETANK_DEFAULT_SOCKET "/run/surgetank/control.sock"

/* 0: done, or -1: not, and `why` has one sentence. */
static int surgetank_failed(char *why, size_t size, const char *what, const char *reason)
{
    if (size > 0)
        snprintf(why, size, "%s: %s", what, reason);
    return -1;
}

/* Sends a request, one line of JSON, and reads whether the daemon answers "ok". `path`: NULL for $SURGETANK_SOCKET or the
 * default. */
static int surgetank_ask(const char *path, const char *request, char *why, size_t size)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    struct timeval timeout = { .tv_sec = 30 };
    char answer[4096];
    size_t length = 0, sent = 0, all = strlen(request);
    ssize_t got = 1;
    int connection;

    if (path == NULL && ((path = getenv("SURGETANK_SOCKET")) == NULL || *path == '\0'))
        path = SURGETANK_DEFAULT_SOCKET;
    if (strlen(path) >= sizeof address.sun_path)
        return surgetank_failed(why, size, path, "the path is too long for a socket");
    strcpy(address.sun_path, path);
    connection = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connection < 0)
        return surgetank_failed(why, size, path, strerror(errno));
    setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
    if (connect(connection, (struct sockaddr *)&address, sizeof address) != 0) {
        int reason = errno;
        close(connection);
        return surgetank_failed(why, size, path, strerror(reason));
    }
    while (sent < all && (got = send(connection, request + sent, all - sent, MSG_NOSIGNAL)) > 0)
        sent += (size_t)got;
    /* The beginning of the answer says which of the two it is. */
    while (got > 0 && length < sizeof answer - 1 && memchr(answer, '\n', length) == NULL)
        if ((got = recv(connection, answer + length, sizeof answer - 1 - length, 0)) > 0)
            length += (size_t)got;
    close(connection);
    answer[length] = '\0';
    answer[strcspn(answer, "\n")] = '\0';
    if (strncmp(answer, "{\"ok\":", 6) == 0)
        return 0;
    return surgetank_failed(why, size, path, length > 0 ? answer : "the daemon does not answer");
}

/* `"` and `\` and control characters are in no name of a device. */
static int surgetank_is_name(const char *device)
{
    for (; *device != '\0'; device++)
        if (*device == '"' || *device == '\\' || (unsigned char)*device < ' ')
            return 0;
    return 1;
}

/* A burst comes: of so many bytes (0: not known), in so many seconds (0: now). */
static inline int surgetank_boost(const char *path, const char *device, uint64_t burst_bytes, double starts_in_s, char *why,
                           size_t size)
{
    char request[512], bytes[64] = "";
    /* What no integer holds is as good as never; what is no number is now. */
    double starts_in_ms = starts_in_s > 0 ? (starts_in_s < 1e12 ? starts_in_s * 1000 : 1e15) : 0;

    if (!surgetank_is_name(device) || strlen(device) > 256)
        return surgetank_failed(why, size, device, "this is no name of a device");
    if (burst_bytes > 0)
        snprintf(bytes, sizeof bytes, ",\"burst_bytes\":%llu", (unsigned long long)burst_bytes);
    snprintf(request, sizeof request, "{\"command\":\"boost\",\"device\":\"%s\",\"starts_in_ms\":%llu%s}\n", device,
             (unsigned long long)starts_in_ms, bytes);
    return surgetank_ask(path, request, why, size);
}

/* The burst is over: the boost ends now, and not when the inactivity delay is over. */
static inline int surgetank_drain(const char *path, const char *device, char *why, size_t size)
{
    char request[512];

    if (!surgetank_is_name(device) || strlen(device) > 256)
        return surgetank_failed(why, size, device, "this is no name of a device");
    snprintf(request, sizeof request, "{\"command\":\"drain\",\"device\":\"%s\"}\n", device);
    return surgetank_ask(path, request, why, size);
}

#endif
