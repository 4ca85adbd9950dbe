/** The extension: one plugin for each thing that it does, and each can be disabled. */

import { commandsPlugin } from './commands';
import { dashboardsPlugin } from './dashboards';
import { formPlugin } from './form/plugin';
import { injectPlugin } from './inject';
import { logsPlugin } from './logs/plugin';
import { notificationsPlugin } from './notifications';
import { plugin } from './plugin';
import { sidebarPlugin } from './sidebarPlugin';
import { statusPlugin } from './status';

export default [
  plugin,
  sidebarPlugin,
  commandsPlugin,
  dashboardsPlugin,
  injectPlugin,
  statusPlugin,
  notificationsPlugin,
  formPlugin,
  logsPlugin
];
