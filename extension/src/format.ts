import type { TranslationBundle } from '@jupyterlab/translation';

import type { ICluster } from './contract';
import type { ClustersModel } from './model/clusters';

/** The category of a state, which its dot has as a color. */
export type StateCategory = 'good' | 'waiting' | 'bad' | 'ending';

const CATEGORIES: Record<string, StateCategory> = {
  ready: 'good',
  degraded: 'bad',
  failed: 'bad',
  cancelled: 'bad',
  timeout: 'bad',
  closing: 'ending',
  completing: 'ending',
  done: 'ending'
};

/** Return the category of the state of a cluster. */
export function stateCategory(cluster: ICluster): StateCategory {
  if (cluster.busy !== null) {
    return cluster.busy === 'stopping' ? 'ending' : 'waiting';
  }
  return CATEGORIES[cluster.state] ?? 'waiting';
}

/** Return the title of a group of options; the text of the server, if the group has no title here. */
export function formatGroup(group: string, trans: TranslationBundle): string {
  const titles: Record<string, string> = {
    'what to start': trans.__('What to start'),
    'ranks and nodes': trans.__('Ranks and nodes'),
    scheduler: trans.__('Scheduler'),
    'environment of the ranks': trans.__('Environment of the ranks'),
    network: trans.__('Network'),
    'work that outlives its job': trans.__('Work that outlives its job'),
    'time limits': trans.__('Time limits')
  };
  return titles[group] ?? group;
}

/** Return a text of the server in the language of the page, if a language pack has the text. */
export function translate(text: string, trans: TranslationBundle): string {
  // The texts are those of the help of `workbench start`: the table of options is on the server.
  // eslint-disable-next-line jupyter/no-dynamic-translation
  return text && trans.__(text);
}

/** Return the label of the state of a cluster. */
export function formatState(cluster: ICluster, trans: TranslationBundle): string {
  const labels: Record<string, string> = {
    submitted: trans.__('submitted'),
    queued: trans.__('queued'),
    held: trans.__('held'),
    running: trans.__('job starting'),
    suspended: trans.__('suspended'),
    starting: trans.__('starting'),
    ready: trans.__('ready'),
    degraded: trans.__('degraded'),
    restarting: trans.__('restarting'),
    scaling: trans.__('scaling'),
    stopping: trans.__('stopping'),
    closing: trans.__('closing'),
    completing: trans.__('ending'),
    failed: trans.__('failed'),
    cancelled: trans.__('canceled'),
    timeout: trans.__('out of time'),
    done: trans.__('ended'),
    gone: trans.__('gone')
  };
  const state = cluster.busy ?? cluster.state;
  return labels[state] ?? state;
}

/** Return why the server takes no requests; empty: it does. */
export function unavailableReason(
  {
    connectionState: state,
    connectionError: trouble
  }: Pick<ClustersModel, 'connectionState' | 'connectionError'>,
  trans: TranslationBundle
): string {
  switch (state) {
    case 'missing':
      return trans.__('This Jupyter server does not have the server extension of the workbench.');
    case 'refused':
      return trans.__('The server does not let you see clusters: %1', trouble);
    default:
      return '';
  }
}

/** Return a duration in two units at most, as `1 h 05 min` or `40 s`. */
export function formatDuration(seconds: number, trans: TranslationBundle): string {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) {
    return trans.__('%1 s', whole);
  }
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) {
    return trans.__('%1 min', minutes);
  }
  const hours = Math.floor(minutes / 60);
  if (hours < 24) {
    return trans.__('%1 h %2 min', hours, String(minutes % 60).padStart(2, '0'));
  }
  return trans.__('%1 d %2 h', Math.floor(hours / 24), hours % 24);
}

/** Return a number of bytes with three digits, as `1.5 GiB`; so do dashboards. */
export function formatBytes(count: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  const fitting = units.findIndex((_, power) => count < 1023.5 * 1024 ** power);
  const power = fitting < 0 ? units.length - 1 : fitting;
  const value = count / 1024 ** power;
  const digits = value < 99.95 ? Number(value.toPrecision(3)) : Math.round(value);
  return `${digits} ${units[power] ?? ''}`;
}

/** Return a time of day, with the day unless it is today. */
export function formatTime(time: number, now: number): string {
  const date = new Date(time * 1000);
  const hours = date.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' });
  const isToday = date.toDateString() === new Date(now * 1000).toDateString();
  return isToday
    ? hours
    : `${date.toLocaleDateString([], { weekday: 'short', day: 'numeric', month: 'short' })}, ${hours}`;
}
