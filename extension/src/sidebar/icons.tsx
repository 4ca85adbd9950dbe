import {
  addIcon,
  closeIcon,
  codeIcon,
  LabIcon,
  listIcon,
  refreshIcon,
  stopIcon,
  type LabIcon as Icon
} from '@jupyterlab/ui-components';
import * as React from 'react';

import clustersSvg from '../../style/icons/clusters.svg';
import dashboardSvg from '../../style/icons/dashboard.svg';
import scaleSvg from '../../style/icons/scale.svg';

/** What stands for clusters. */
export const clustersIcon = new LabIcon({ name: 'mpi-workbench:clusters', svgstr: clustersSvg });
/** What stands for their dashboards. */
export const dashboardIcon = new LabIcon({ name: 'mpi-workbench:dashboard', svgstr: dashboardSvg });
/** What stands for another number of ranks. */
export const scaleIcon = new LabIcon({ name: 'mpi-workbench:scale', svgstr: scaleSvg });

const part = (icon: Icon) => () => (
  <icon.react tag="span" width="16px" height="16px" aria-hidden="true" />
);

export const AddIcon = part(addIcon);
export const CloseIcon = part(closeIcon);
export const CodeIcon = part(codeIcon);
export const DashboardIcon = part(dashboardIcon);
export const LogsIcon = part(listIcon);
export const RestartIcon = part(refreshIcon);
export const ScaleIcon = part(scaleIcon);
export const StopIcon = part(stopIcon);
